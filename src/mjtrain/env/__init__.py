"""The batched MDP: an environment made of named terms. Importing this package imports torch only with its modules."""
