"""The work of an agent: poll, run, report, answer quotes."""
