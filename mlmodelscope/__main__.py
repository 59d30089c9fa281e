"""`python -m mlmodelscope` is the command line."""

from mlmodelscope.cli import main

if __name__ == "__main__":
    main()
