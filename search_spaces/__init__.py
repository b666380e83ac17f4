"""Which plans are legal: the rule table, and the enumeration of what it leaves."""
