"""What `softbench tune` does on a card: it times families of launch plans on random shapes, and writes the card's table."""
