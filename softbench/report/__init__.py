"""Tables, plots and reports from results. Nothing is printed here."""
