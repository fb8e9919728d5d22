"""What people write, and where things lie: schema, reading files, what differs between two, directories."""
