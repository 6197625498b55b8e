"""`python -m softbench`."""

from softbench.cli import main

if __name__ == "__main__":
    main()
