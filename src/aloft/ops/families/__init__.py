"""Cases and tolerances shared by the contracts of one family of operators."""
