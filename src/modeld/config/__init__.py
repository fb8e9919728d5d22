"""What people write, and where things lie: the schema, reading a file, directories, the reference."""
