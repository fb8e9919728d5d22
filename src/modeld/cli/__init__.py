"""The command line. `main` holds the list of commands and the one place where errors become exit codes."""
