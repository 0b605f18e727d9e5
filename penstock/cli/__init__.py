"""The `penstock` command: a file per noun.

Commands parse and load; loaders return typed records; `views/` prints them as text or JSON.
Importing this package must stay cheap: no Spark, no Arrow, no driver, no rich before a command
needs them, so that `penstock --help` answers at once.
"""
