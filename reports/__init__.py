"""What the user takes away: summary, markdown report, launch files of the winner."""
