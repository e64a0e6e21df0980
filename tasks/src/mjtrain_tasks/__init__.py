"""The built-in tasks of mjtrain, each a folder of its own."""
