"""Plans from what users have: configuration files of the frameworks, read and explained."""
