"""From a request to the work of one rank."""
