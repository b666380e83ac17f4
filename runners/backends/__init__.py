"""Plan in, LaunchSpec out: one file a framework; nothing is started here."""
