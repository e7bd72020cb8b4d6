"""What pages are made of, whichever feature shows them: the page, words for amounts and times, drawings."""
