"""`python -m fabwatch`."""

from fabwatch.cli import main

if __name__ == "__main__":
    main()
