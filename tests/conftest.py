"""What holds for all tests: generated examples are the same in every run, and no slow machine fails one."""

from hypothesis import settings

# Hypothesis' own profile for CI: no time limit for an example (200 ms otherwise, which a busy machine exceeds by
# chance), and the same examples each time. `pytest --hypothesis-profile default` looks for new ones.
settings.load_profile("ci")
