"""`python -m streams.broker`: a throw-away broker in the foreground."""

import sys

from streams.broker.node import main

sys.exit(main())
