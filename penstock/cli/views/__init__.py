"""How records look: a table for people, or JSON with the records' own field names."""
