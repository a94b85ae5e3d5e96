"""Plans: what may run, what is tried, which one a call takes, and the tables that tuners leave."""
