"""One module per operator, named like it, holding ``CONTRACT``. Loaded by `aloft.ops.registry`."""
