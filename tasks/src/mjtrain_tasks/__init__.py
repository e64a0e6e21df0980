"""The built-in tasks of mjtrain, each a separate folder."""
