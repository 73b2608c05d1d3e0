"""The running thing: task loop, commit, live window, fallback, worker and command line."""
