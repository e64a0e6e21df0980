"""What tests of several folders use: real jobs, clusters, storage servers, browsers, small models."""
