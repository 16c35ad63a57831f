"""`python -m packer`: for systems where another program is called `packer`."""

from packer.cli import main

if __name__ == "__main__":
    main()
