"""`python -m mjtrain COMMAND`: the same as `mjtrain COMMAND`."""

from mjtrain.cli.main import main

if __name__ == "__main__":
    main()
