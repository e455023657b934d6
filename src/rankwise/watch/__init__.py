"""Every product's rank during training: the monitor, its schedules and alarms, and the runs that it writes."""
