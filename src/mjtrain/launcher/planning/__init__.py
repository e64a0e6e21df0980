"""Which ranks run where, decided from plain inputs; nothing here starts anything."""
