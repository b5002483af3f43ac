"""Literate: one MyST source, read three ways.

`reader` turns a page into records (blocks of code, inline expressions), exactly as
MyST would show them. Three listeners use those records and none knows another:

* `tangle` writes the files that the blocks add up to,
* `prove` runs every block and every expression under pytest, through Sybil,
* `weave` teaches Sphinx the same options and links pages and files both ways.

To add a block option, add one entry to `literate.options.OPTIONS`.
"""
