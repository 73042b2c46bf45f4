"""How pictures look: one style for the plots of reports and those that agents see."""
