"""The monitor in other people's training loops, one thin file for each."""
