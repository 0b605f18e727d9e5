"""The Spark engine: session, fused copy, transforms. Importing it loads no pyspark."""
