"""What all commands share: how one is declared, its arguments, its errors, and the columns of listings."""
