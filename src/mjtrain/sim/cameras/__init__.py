"""Pictures of all worlds in one call, for either engine. Importing this package imports no renderer."""
