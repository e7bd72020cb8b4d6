"""What all commands share: arguments, tables, colours, progress, completion."""
