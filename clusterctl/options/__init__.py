"""The command line as tables: verbs, their options, and what may stand together."""
