"""Commands, one file each: they parse, call and print."""
