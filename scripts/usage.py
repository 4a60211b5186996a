"""What scripts in Python say of arguments that they do not take: `NAME: what`, and 64, as our programs do."""
import argparse


class Parser(argparse.ArgumentParser):
    """Its --help is the script's own description, as it is written."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        self.exit(64, f'{self.prog}: {message}\n')
