"""Times and sizes that a run has found out."""
import os


def note(figure):
    """Said, and kept for who wants all of them in one place: scripts/test --e2e names the file."""
    print(f'\n{figure}', flush=True)
    if 'MT_FIGURES' in os.environ:
        with open(os.environ['MT_FIGURES'], 'a') as file:
            print(figure, file=file)
