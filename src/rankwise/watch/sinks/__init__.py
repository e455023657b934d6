"""Where a monitor's numbers can go besides its run."""
