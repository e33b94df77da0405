"""``python -m aloft.ops``: the same as ``aloft ops``."""

from __future__ import annotations

import sys

from aloft.ops.conformance import main

sys.exit(main())
