"""`python -m softbench`."""

from softbench.cli.main import main

if __name__ == "__main__":
    main()
