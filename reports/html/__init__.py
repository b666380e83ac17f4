"""``report.html`` and the comparison as one self-contained file each: data, then templates."""
