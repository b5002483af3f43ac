"""Run the book: every block and every computed number is a test.

`documents` gives Sybil the reader's records, `steps` says what each record's test is,
`chapter` holds the module that a chapter's blocks run in, `report` turns a failure into
`chapters/….md:LINE`, and `plugin` hands it all to pytest. A page that asks for a `process`
of its own has its steps run by a `worker`, which `fresh` talks to.
"""
