"""Tables and object stores that pipelines write to. Start with table for tables, object_store for stores."""
