"""The `aloft` command. Each command's work lives in a module of its own and is imported when it runs."""
