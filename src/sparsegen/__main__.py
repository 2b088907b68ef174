"""`python -m sparsegen`, which torchrun can start too."""

from sparsegen.cli import main

if __name__ == "__main__":
    main()
