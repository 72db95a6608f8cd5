"""`python -m rocketspark`: the `rocketspark` command, where its script is not on the path."""

from rocketspark.cli.main import main

if __name__ == "__main__":
    main()
