"""What the loop remembers: types, the Store protocol, memory, task book, ingest queue."""
